"""Mode object, the decisions: a record is safe when its object is stored and its coordinates are agreed on."""
