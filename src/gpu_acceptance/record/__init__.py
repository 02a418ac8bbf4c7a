"""The facts that a run leaves: plan, ranks, figures, attempts, outcome; and readings turned into figures. To and from JSON."""
