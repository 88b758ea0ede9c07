"""What an operator and a program ask the gateway itself: placements, health, status, metrics."""
