"""Records become rows: JSON values into typed Arrow columns, and the columns a table grows to have."""
