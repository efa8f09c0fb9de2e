const sign = (value: number | null | undefined, text: (value: number) => string) =>
  value === null || value === undefined || Number.isNaN(value) ? "–" : text(value);

export const count = (value: number | null | undefined) =>
  sign(value, (v) => {
    if (Math.abs(v) >= 1e6) return `${(v / 1e6).toFixed(v >= 1e7 ? 1 : 2)} M`;
    if (Math.abs(v) >= 1e4) return `${(v / 1e3).toFixed(1)} k`;
    return Math.abs(v) < 10 && v % 1 !== 0 ? v.toFixed(1) : Math.round(v).toLocaleString("en");
  });

export const bytes = (value: number | null | undefined) =>
  sign(value, (v) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (v >= 1024 && unit < units.length - 1) {
      v /= 1024;
      unit += 1;
    }
    return `${unit === 0 ? Math.round(v) : v.toFixed(v < 10 ? 2 : v < 100 ? 1 : 0)} ${units[unit]}`;
  });

export const percent = (value: number | null | undefined) => sign(value, (v) => `${(v * 100).toFixed(v < 0.1 ? 1 : 0)}%`);

export const duration = (ms: number | null | undefined) =>
  sign(ms, (v) => {
    if (v < 1000) return `${Math.round(v)} ms`;
    const s = v / 1000;
    if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
  });
