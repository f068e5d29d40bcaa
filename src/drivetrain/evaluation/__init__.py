"""Black-box evaluation: unmodified agents against any model endpoint, graded as in training, counted with care."""
