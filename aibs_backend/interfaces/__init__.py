"""The module names that the operators' runbook uses."""
