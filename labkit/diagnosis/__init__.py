"""From a run to a verdict: diagnose, watch, checkup, study."""
