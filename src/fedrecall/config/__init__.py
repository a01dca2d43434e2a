"""Configuration: sections, defaults, overrides, validation."""
