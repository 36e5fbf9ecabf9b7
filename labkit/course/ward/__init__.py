"""The ward: sealed patients to examine, diagnose and treat."""
