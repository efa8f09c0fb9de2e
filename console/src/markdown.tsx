// The part of Markdown that our documents use, as elements and never as HTML text.
import type { ComponentChildren } from "preact";

function inline(text: string, page: string): ComponentChildren[] {
  const out: ComponentChildren[] = [];
  const pattern = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\(([^)\s]+)\)/g;
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    out.push(text.slice(from, match.index));
    const [whole, code, strong, em, label, target] = match;
    if (code !== undefined) out.push(<code>{code}</code>);
    else if (strong !== undefined) out.push(<strong>{strong}</strong>);
    else if (em !== undefined) out.push(<em>{em}</em>);
    else out.push(link(label, target, page));
    from = match.index + whole.length;
  }
  out.push(text.slice(from));
  return out;
}

function link(label: string, target: string, page: string) {
  if (/^https?:\/\//.test(target)) return <a href={target} rel="noreferrer noopener" target="_blank">{label}</a>;
  const [path] = target.split("#");
  if (path === "" || !path.endsWith(".md")) return <span>{label}</span>;
  const parts = page.split("/").slice(0, -1);
  for (const part of path.split("/")) {
    if (part === "..") parts.pop();
    else if (part !== ".") parts.push(part);
  }
  return <a href={`#/docs/${parts.join("/")}`}>{label}</a>;
}

const cells = (line: string) =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));

export function markdown(text: string, page: string): ComponentChildren[] {
  // Comments are for those who write the documents, and for the test that follows them.
  const lines = text.replace(/<!--[\s\S]*?-->\n?/g, "").split("\n");
  const out: ComponentChildren[] = [];
  for (let i = 0; i < lines.length; ) {
    const line = lines[i];
    const heading = /^(#{1,4}) (.*)/.exec(line);
    if (line.startsWith("```")) {
      const end = lines.indexOf("```", i + 1);
      out.push(<pre><code>{lines.slice(i + 1, end < 0 ? undefined : end).join("\n")}</code></pre>);
      i = end < 0 ? lines.length : end + 1;
    } else if (heading) {
      const Tag = `h${heading[1].length}` as "h1";
      out.push(<Tag>{inline(heading[2], page)}</Tag>);
      i += 1;
    } else if (line.startsWith("|")) {
      const rows: string[][] = [];
      for (; lines[i]?.startsWith("|"); i++) rows.push(cells(lines[i]));
      const [head, , ...body] = rows;
      out.push(
        <div class="table">
          <table>
            <thead><tr>{head.map((cell) => <th>{inline(cell, page)}</th>)}</tr></thead>
            <tbody>{body.map((row) => <tr>{row.map((cell) => <td class="wide">{inline(cell, page)}</td>)}</tr>)}</tbody>
          </table>
        </div>,
      );
    } else if (/^(\d+\.|[-*]) /.test(line)) {
      const items: string[] = [];
      const ordered = /^\d/.test(line);
      for (; i < lines.length && lines[i].trim() !== ""; i++) {
        if (/^(\d+\.|[-*]) /.test(lines[i])) items.push(lines[i].replace(/^(\d+\.|[-*]) /, ""));
        else items[items.length - 1] += ` ${lines[i].trim()}`;
      }
      const List = ordered ? "ol" : "ul";
      out.push(<List>{items.map((item) => <li>{inline(item, page)}</li>)}</List>);
    } else if (line.trim() === "") {
      i += 1;
    } else {
      const paragraph: string[] = [];
      for (; i < lines.length && lines[i].trim() !== "" && !/^(#|```|\|)/.test(lines[i]); i++) paragraph.push(lines[i].trim());
      out.push(<p>{inline(paragraph.join(" "), page)}</p>);
    }
  }
  return out;
}
