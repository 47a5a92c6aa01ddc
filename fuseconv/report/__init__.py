"""One HTML file that shows what is in a bundle, or in two side by side."""
