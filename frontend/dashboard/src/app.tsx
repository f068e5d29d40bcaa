import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Cards } from "./cards";
import { Header } from "./header";
import { HelpDialog } from "./help";
import { forget, remember, takeKey } from "./key";
import { KeyForm } from "./keyform";
import { type State, apply, nothing } from "./model";
import { Notices } from "./notices";
import { Rollouts } from "./rollouts";
import { Side } from "./side";
import { type Link, follow } from "./stream";
import { nextTheme, readTheme } from "./theme";

export function App() {
  const [key, setKey] = useState(takeKey);
  const [link, setLink] = useState<Link>({ at: "connecting" });
  const [state, setState] = useState<State>(nothing);
  const [theme, setTheme] = useState(readTheme);
  const help = useRef<HTMLDialogElement>(null);
  const turnTheme = useCallback(() => setTheme(nextTheme), []);

  useEffect(() => {
    if (!key) return;
    return follow(key, {
      link: setLink,
      message: (message, snapshot) => setState((before) => apply(before, message, snapshot)),
    });
  }, [key]);
  useEffect(() => {
    if (link.at === "refused") {
      forget();
      setKey("");
    }
  }, [link]);
  useEffect(() => {
    function press(event: KeyboardEvent) {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if ((event.target as HTMLElement).closest("input, select, dialog[open]")) return;
      if (event.key === "?") help.current?.showModal();
      else if (event.key === "t") turnTheme();
      else if (event.key === "/") document.getElementById("filter")?.focus();
      else return;
      event.preventDefault();
    }
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, [turnTheme]);
  useEffect(() => {
    const { phases, reward } = state.summary;
    const done = phases?.done ?? 0;
    const mean = reward?.mean;
    document.title = state.run
      ? `${done ? `${done} done${mean == null ? "" : `, reward ${mean.toFixed(2)}`} - ` : ""}${state.run.name} - drivetrain`
      : "drivetrain dashboard";
  }, [state]);

  if (!key) {
    return (
      <KeyForm
        refused={link.at === "refused"}
        give={(given) => {
          remember(given);
          setLink({ at: "connecting" });
          setKey(given);
        }}
      />
    );
  }
  return (
    <>
      <Header run={state.run} summary={state.summary} link={link} theme={theme} turnTheme={turnTheme} openHelp={() => help.current?.showModal()} />
      <Notices run={state.run} summary={state.summary} link={link} />
      {state.run ? (
        <main class="page" data-live={link.at}>
          <Cards state={state} />
          <div class="columns">
            <Rollouts state={state} />
            <Side state={state} />
          </div>
        </main>
      ) : (
        <main class="page loading" aria-busy={link.at === "connecting"}>
          <p class="quiet" role="status">{link.at === "lost" ? "Waiting for the server …" : "Reading the run …"}</p>
        </main>
      )}
      <HelpDialog dialog={help} />
    </>
  );
}
