// What changes by itself as time passes.
import { useEffect, useState } from "../vendor/preact.js";

// Draws the component again each second, while `isOn`.
export function useTicks(isOn = true) {
  const [, tick] = useState(0);
  useEffect(() => {
    if (!isOn) return undefined;
    const timer = setInterval(() => tick(count => count + 1), 1000);
    return () => clearInterval(timer);
  }, [isOn]);
}
