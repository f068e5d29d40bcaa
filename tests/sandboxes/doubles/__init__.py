"""Servers on loopback that speak what the SDKs of cloud providers speak; their boxes are real namespaces."""
