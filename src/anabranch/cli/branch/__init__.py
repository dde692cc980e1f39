"""`anabranch branch`: what each side of a split wrote, and how the sides differ."""
