import { useEffect, useState } from "preact/hooks";
import { Card } from "../ui.tsx";
import { markdown } from "../markdown.tsx";

export function Docs({ path }: { path: string | null }) {
  const [list, setList] = useState<[string, string][]>([]);
  const [text, setText] = useState("");
  const current = path ?? "tutorial/first-gateway.md";
  useEffect(() => void fetch("./docs").then((response) => response.json()).then(setList, () => {}), []);
  useEffect(() => {
    setText("");
    void fetch(`./docs/${current}`).then(async (response) => setText(response.ok ? await response.text() : "# Page not found"), () => setText("# The gateway does not answer"));
  }, [current]);
  const groups = new Map<string, [string, string][]>();
  for (const entry of list) {
    const group = entry[0].includes("/") ? entry[0].split("/")[0] : "explanation";
    groups.set(group, [...(groups.get(group) ?? []), entry]);
  }
  return (
    <div class="with-tree">
      <Card title="Documents" class="tree">
        {[...groups].map(([group, entries]) => (
          <div key={group}>
            <h3>{group}</h3>
            <ul>{entries.map(([each, title]) => <li key={each}><a aria-current={each === current ? "true" : undefined} href={`#/docs/${each}`}>{title}</a></li>)}</ul>
          </div>
        ))}
      </Card>
      <Card class="prose">{markdown(text, current)}</Card>
    </div>
  );
}
