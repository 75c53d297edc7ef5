"""What a user reads: codes, findings, reports and their renderers. Import from the modules of this package."""
