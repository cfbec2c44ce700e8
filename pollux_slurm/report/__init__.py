"""Store queries turned into tables and pages."""
