// The work that was graded.

import { el } from "./dom.js";
import { diffKind } from "./forkbox.js";
import { lineView } from "./lineview.js";
import { many } from "./numbers.js";

export function patchPanel(app) {
  const patch = app.trace.data.files["work.patch"];
  if (!patch) return [el("h2", {}, "Patch"), el("p", {}, patch === "" ? "Nothing was changed." : "No patch was recorded.")];
  const lines = patch.split("\n");
  const kinds = patchKinds(lines);
  const size = (kind) => kinds.filter((each) => each === kind).length;
  const files = lines.filter((line) => line.startsWith("diff --git ")).length;
  return [
    el("h2", {}, "Patch"),
    el("p", {}, `${many(files, "file")}, ${many(size("added"), "line")} added, ${many(size("removed"), "line")} removed`),
    lineView(patch, "Patch", (line, index) => kinds[index]),
  ];
}

// What each line of a git diff is. A removed line may begin with "--" and an added one with "++": in a hunk the first
// character alone decides, and the hunk's own numbers say where it ends.
export function patchKinds(lines) {
  let before = 0;
  let now = 0;
  return lines.map((line) => {
    const hunk = /^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@/.exec(line);
    if (hunk && !before && !now) {
      before = Number(hunk[1] ?? 1);
      now = Number(hunk[2] ?? 1);
      return "hunk";
    }
    if (before || now) {
      const sign = line[0];
      if (sign !== "+" && sign !== "\\") before -= 1;
      if (sign !== "-" && sign !== "\\") now -= 1;
      return sign === "+" ? "added" : sign === "-" ? "removed" : "same";
    }
    if (line.startsWith("diff --git ")) return "file first";
    return diffKind(line) === "file" ? "file" : "quiet";
  });
}
