"""Searchers: what decides which configuration is tried next. One file each, one interface (base.py), no Ray."""
