"""Decoders of values whose schemas are in a Schema Registry."""
