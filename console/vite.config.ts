import { defineConfig } from "vite";

// Fixed names: the binary carries the files under them, and a rebuild of the same sources gives the same bytes.
export default defineConfig({
  base: "./",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    outDir: "dist",
    modulePreload: false,
    cssCodeSplit: false,
    target: "es2022",
    assetsInlineLimit: 0,
    rollupOptions: {
      input: { app: "index.html" },
      output: {
        entryFileNames: "[name].js",
        chunkFileNames: "[name].js",
        assetFileNames: (asset) => (asset.names[0]?.endsWith(".css") ? "app.css" : "[name][extname]"),
      },
    },
  },
});
