"""Google generateContent: ``/v1beta/models/NAME:generateContent`` and its like."""
