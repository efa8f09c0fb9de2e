import uPlot from "uplot";
import { useEffect, useRef } from "preact/hooks";
import { live } from "./live.ts";
import { theme } from "./ui.tsx";

export interface Line {
  label: string;
  /** Name of a live series, or values aligned with `time`. */
  of: string | (number | null)[];
  color: string;
}

const css = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A chart over time. Without `time` it follows the live series. */
export function Chart(props: {
  lines: Line[];
  height?: number;
  format: (value: number | null) => string;
  time?: number[];
  /** Label of the horizontal axis when it is not clock time. */
  clock?: boolean;
  name: string;
}) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const following = props.time === undefined;
  const state = live.use();
  const mode = theme.use();
  const values = (): uPlot.AlignedData => [
    props.time ?? state.time,
    ...props.lines.map((line) => (typeof line.of === "string" ? (state.series[line.of] ?? []) : line.of)),
  ] as uPlot.AlignedData;
  const shape = props.lines.map((line) => line.label + line.color).join() + mode;
  useEffect(() => {
    const box = place.current!;
    const axis = {
      stroke: css("--muted"),
      font: "11px system-ui, sans-serif",
      grid: { stroke: css("--line"), width: 1 },
      ticks: { show: false },
    };
    const made = new uPlot(
      {
        width: box.clientWidth || 400,
        height: props.height ?? 180,
        padding: [10, 26, 0, 0],
        cursor: { points: { size: 7 }, y: false },
        legend: { live: true, markers: { width: 3 } },
        scales: { x: { time: props.clock ?? true }, y: { range: (_, __, max) => [0, Math.max(max * 1.08, 1e-9)] } },
        series: [
          { value: (_, v) => (v === null ? "" : props.clock === false ? `${v}` : new Date(v * 1000).toLocaleTimeString("en-GB")) },
          ...props.lines.map((line) => ({
            label: line.label,
            stroke: css(line.color),
            width: 1.75,
            fill: props.lines.length === 1 ? css(line.color) + "22" : undefined,
            points: { show: false },
            spanGaps: false,
            value: (_: uPlot, v: number | null) => props.format(v),
          })),
        ],
        axes: [
          {
            ...axis,
            space: 80,
            size: 26,
            values: (_, ticks) => ticks.map((v) => (props.clock === false ? `${v} s` : new Date(v * 1000).toLocaleTimeString("en-GB"))),
          },
          { ...axis, size: 62, space: 32, values: (_, ticks) => ticks.map((v) => props.format(v)) },
        ],
      },
      values(),
      box,
    );
    plot.current = made;
    const resize = new ResizeObserver(() => made.setSize({ width: box.clientWidth, height: props.height ?? 180 }));
    resize.observe(box);
    return () => {
      resize.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, props.height]);
  useEffect(() => {
    plot.current?.setData(values());
  }, [following ? state.time.at(-1) : props.time, state.time.length, shape]);
  return <div class="chart" ref={place} role="img" aria-label={props.name} />;
}

/** A line without axes, for tables and tiles. */
export function Spark({ of, color = "--accent" }: { of: string; color?: string }) {
  const state = live.use();
  const values = (state.series[of] ?? []).slice(-60).map((value) => value ?? 0);
  const max = Math.max(...values, 1e-9);
  const points = values.map((value, i) => `${((i + 60 - values.length) / 59) * 100},${22 - (value / max) * 20}`).join(" ");
  return (
    <svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">
      <polyline points={points} fill="none" stroke={`var(${color})`} stroke-width="1.5" vector-effect="non-scaling-stroke" />
    </svg>
  );
}
