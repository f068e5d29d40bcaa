"""Parsers of sampled text, one file per family of format; the public face is :mod:`drivetrain.tokens.parse`."""
