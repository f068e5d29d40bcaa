import { render } from "preact";
import { App } from "./app";
import { TracePage } from "./trace";
import "../../../src/drivetrain/viewer/assets/1-base.css";
import "./dashboard.css";

const root = document.getElementById("app");
const trace = /^\/dashboard\/trace\/([^/]+)$/.exec(location.pathname)?.[1];
if (root) {
  root.id = "dashboard";
  render(trace === undefined ? <App /> : <TracePage rollout={decodeURIComponent(trace)} />, root);
}
