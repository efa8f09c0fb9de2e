//! Extraction of a program's command line from a compose file or manifest, without a full YAML
//! parser: the value of `command:` or `args:`, in its four usual forms.

/// A command line and its position.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Line of the key, from 1.
    pub(super) line: usize,
    /// The nearest key above it with less indentation: the service.
    pub(super) service: String,
    pub(super) words: Vec<String>,
}

/// Every command line of a file.
pub(super) fn commands(text: &str) -> Vec<Found> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let bare = line.trim_start().trim_start_matches("- ");
        let Some(value) = bare.strip_prefix("command:").or_else(|| bare.strip_prefix("args:")) else {
            continue;
        };
        let indent = indent_of(line);
        let below = lines[index + 1..].iter().copied();
        let service = lines[..index]
            .iter()
            .rev()
            .find(|above| indent_of(above) < indent && above.trim_end().ends_with(':'))
            .map(|above| above.trim().trim_start_matches("- ").trim_end_matches(':').to_owned());
        let words = match without_comment(value).trim() {
            "" => block_list(below, indent),
            flow if flow.starts_with('[') => flow_list(flow, below),
            sign if sign.starts_with(['>', '|']) => split(&deeper(below, indent)),
            inline => split(&format!("{inline} {}", deeper(below, indent))),
        };
        found.push(Found { line: index + 1, service: service.unwrap_or_default(), words });
    }
    found
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn without_comment(text: &str) -> &str {
    text.split_once(" #").map_or(text, |(before, _)| before)
}

/// The lines below that are indented more, as one.
fn deeper<'a>(below: impl Iterator<Item = &'a str>, indent: usize) -> String {
    let lines = below.take_while(|line| line.trim().is_empty() || indent_of(line) > indent);
    lines.map(|line| line.trim().trim_end_matches('\\')).collect::<Vec<_>>().join(" ")
}

/// `- item` lines; the items may stand as far left as their key.
fn block_list<'a>(below: impl Iterator<Item = &'a str>, indent: usize) -> Vec<String> {
    let items = below.filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    let items = items.take_while(|line| indent_of(line) >= indent && line.trim_start().starts_with("- "));
    items.map(|line| unquoted(without_comment(&line.trim_start()[2..]).trim())).collect()
}

/// `[a, "b"]`, over several lines if need be.
fn flow_list<'a>(first: &'a str, below: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut all = String::new();
    for line in std::iter::once(first).chain(below.map(without_comment)) {
        all.push_str(line);
        if line.contains(']') {
            break;
        }
    }
    let inner = all.trim_start_matches('[').split(']').next().unwrap_or_default();
    inner.split(',').map(|item| unquoted(item.trim())).filter(|item| !item.is_empty()).collect()
}

fn unquoted(item: &str) -> String {
    let quoted = |sign: char| item.strip_prefix(sign)?.strip_suffix(sign);
    quoted('"').or_else(|| quoted('\'')).unwrap_or(item).to_owned()
}

/// Words as a shell splits them: blanks, and quotes of both kinds.
fn split(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut any) = (Vec::new(), String::new(), None, false);
    for sign in text.chars() {
        match quote {
            Some(open) if sign == open => quote = None,
            Some(_) => word.push(sign),
            None if sign == '"' || sign == '\'' => {
                quote = Some(sign);
                any = true;
            }
            None if sign.is_whitespace() => {
                if any || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            None => word.push(sign),
        }
    }
    if any || !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_found_in_every_form() {
        let forms = [
            "services:\n  chat:\n    image: x\n    command: -dev -ct=0 \"-scc=a b.json\"\n    ports: [1]\n",
            "services:\n  chat:\n    command: [\"-dev\", -ct=0,\n      '-scc=a b.json'] # comment\n",
            "services:\n  chat:\n    command:\n      - -dev\n      # why\n      - \"-ct=0\"  # none\n      - -scc=a b.json\n    x: y\n",
            "services:\n  chat:\n    command:\n    - -dev\n    - -ct=0\n    - -scc=a b.json\n",
            "services:\n  chat:\n    command: >-\n      -dev\n      -ct=0\n      '-scc=a b.json'\n    x: y\n",
        ];
        for text in forms {
            let found = commands(text);
            assert_eq!(found.len(), 1, "{text}");
            assert_eq!(found[0].service, "chat", "{text}");
            assert_eq!(found[0].words, ["-dev", "-ct=0", "-scc=a b.json"], "{text}");
        }
        let manifest = "spec:\n  containers:\n  - name: gateway\n    args: [\"-dev\"]\n";
        assert_eq!(
            (commands(manifest)[0].line, &commands(manifest)[0].words[..]),
            (4, &["-dev".to_owned()][..])
        );
        assert_eq!(commands("services:\n  a:\n    image: x\n"), []);
        assert_eq!(commands("command: [")[0].words, Vec::<String>::new());
    }
}
