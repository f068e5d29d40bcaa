// Record what the built files were made of: tests/dashboard/test_build.py compares, without a build of its own.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const here = import.meta.dirname;
const assets = join(here, "../../src/drivetrain/dashboard/assets");

function digest(folder, names) {
  const hash = createHash("sha256");
  for (const name of names.sort()) hash.update(`${name}\0`).update(readFileSync(join(folder, name))).update("\0");
  return hash.digest("hex");
}

const sources = ["src", "public"].flatMap((folder) => readdirSync(join(here, folder)).map((name) => `${folder}/${name}`));
const shared = ["../../src/drivetrain/viewer/assets/1-base.css"];
const settings = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"];
const built = readdirSync(assets).filter((name) => name !== "build.json");
const record = { sources: digest(here, [...sources, ...settings, ...shared]), assets: digest(assets, built) };
writeFileSync(join(assets, "build.json"), `${JSON.stringify(record, null, 2)}\n`);
