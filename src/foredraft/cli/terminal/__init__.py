"""What the terminal shows: colours, widths, progress, tables."""
