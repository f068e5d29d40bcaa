// Tokens in lines: a line ends behind a token with a line break, and where the pane is full.

import { columns, visibleText } from "./visible.js";

// What each token of the table looks like: its text, its columns, and whether a line ends behind it. Made once.
export function shapes(trace) {
  return trace.tokens.texts.map((text) => {
    const shown = visibleText(text);
    return { shown, width: columns(shown) + (trace.tokens.spelled ? 0 : 1), breaks: text.includes("\n") };
  });
}

// Index of the first token of each line.
export function tokenLines(sequence, shapes, width) {
  const starts = [];
  let used = Infinity;
  for (let index = 0; index < sequence.length; index++) {
    const shape = shapes[sequence.tokens[index]];
    if (used + shape.width > width) {
      starts.push(index);
      used = 0;
    }
    used = shape.breaks ? Infinity : used + shape.width;
  }
  return Int32Array.from(starts);
}

// The line that holds a token.
export function lineOf(starts, index) {
  let low = 0;
  let high = starts.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= index) low = middle;
    else high = middle - 1;
  }
  return low;
}
