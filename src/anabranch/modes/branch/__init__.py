"""Mode branch, the decisions: lanes, the rows that join them, who is primary on which side of a split."""
