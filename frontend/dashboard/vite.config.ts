import { defineConfig } from "vite";

// Few files under fixed names: the server knows them by name and answers with an entity tag.
export default defineConfig({
  base: "/dashboard/",
  publicDir: "public",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    outDir: "../../src/drivetrain/dashboard/assets",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "dashboard.js",
        assetFileNames: (asset) => (asset.names[0]?.endsWith(".css") ? "dashboard.css" : "[name][extname]"),
        inlineDynamicImports: true,
      },
    },
  },
});
