// The rules for the JavaScript of our pages: mistakes, and lines that nobody can read.
const GLOBALS =
  "window document location history localStorage sessionStorage navigator fetch WebSocket URL URLSearchParams Blob " +
  "File FileReader FormData Event EventTarget CustomEvent MouseEvent MessageEvent KeyboardEvent HTMLElement Element " +
  "Node MutationObserver ResizeObserver IntersectionObserver requestAnimationFrame cancelAnimationFrame " +
  "requestIdleCallback setTimeout clearTimeout setInterval clearInterval queueMicrotask structuredClone performance " +
  "console crypto TextEncoder TextDecoder matchMedia getComputedStyle getSelection CSS AbortController AbortSignal " +
  "Image DOMParser atob btoa alert confirm customElements CSSStyleSheet MessageChannel Worker parent top self " +
  "globalThis postMessage addEventListener removeEventListener innerWidth innerHeight scrollTo EventSource Range " +
  "Text BroadcastChannel ClipboardItem DataTransfer Intl Response CompressionStream";

export default [
  {
    files: ["**/*.js"],
    languageOptions: {
      ecmaVersion: 2023,
      sourceType: "module",
      globals: Object.fromEntries(GLOBALS.split(" ").map(name => [name, "readonly"])),
    },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "array-callback-return": "error",
      "constructor-super": "error",
      eqeqeq: ["error", "smart"],
      "for-direction": "error",
      "getter-return": "error",
      "max-len": ["error", { code: 120, ignoreUrls: true, ignoreRegExpLiterals: true, ignorePattern: '^\\s*d="' }],
      "no-async-promise-executor": "error",
      "no-class-assign": "error",
      "no-compare-neg-zero": "error",
      "no-cond-assign": "error",
      "no-const-assign": "error",
      "no-constant-condition": "error",
      "no-debugger": "error",
      "no-dupe-args": "error",
      "no-dupe-class-members": "error",
      "no-dupe-else-if": "error",
      "no-dupe-keys": "error",
      "no-duplicate-case": "error",
      "no-empty-pattern": "error",
      "no-eval": "error",
      "no-ex-assign": "error",
      "no-fallthrough": "error",
      "no-func-assign": "error",
      "no-global-assign": "error",
      "no-implied-eval": "error",
      "no-import-assign": "error",
      "no-loss-of-precision": "error",
      "no-new-func": "error",
      "no-redeclare": "error",
      "no-self-assign": "error",
      "no-self-compare": "error",
      "no-setter-return": "error",
      "no-sparse-arrays": "error",
      "no-this-before-super": "error",
      "no-undef": "error",
      "no-unreachable": "error",
      "no-unsafe-finally": "error",
      "no-unsafe-optional-chaining": "error",
      "no-unused-vars": ["error", { args: "after-used", caughtErrors: "none", ignoreRestSiblings: true }],
      "no-useless-backreference": "error",
      "no-var": "error",
      "prefer-const": ["error", { destructuring: "all" }],
      "use-isnan": "error",
      "valid-typeof": "error",
    },
  },
];
