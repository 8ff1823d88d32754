// What the JavaScript checks share: how a check is named and reported, and how to wait.

import { setTimeout as sleep } from 'node:timers/promises';

export const PATIENCE = 60_000;

/** Runs pairs of a sentence and a function in order, prints a line for each after what went wrong and one at the end, and ends the process. */
export async function run(checks) {
    let failed = 0;
    for (const [says, look] of checks) {
        const start = performance.now();
        let passed = true;
        try {
            await look();
        } catch (error) {
            console.log(error?.stack ?? String(error));
            passed = false;
            failed += 1;
        }
        const seconds = Math.round(performance.now() - start) / 1000;
        console.log(`check ${JSON.stringify({ says, seconds, passed })}`);
    }
    console.log('end');
    process.exit(failed ? 1 : 0);
}

/** Looks again and again until it gives something true, and gives that. */
export async function until(what, look) {
    const start = performance.now();
    for (;;) {
        const found = await look();
        if (found) {
            return found;
        }
        if (performance.now() - start > PATIENCE) {
            throw new Error(`${what}: not within ${PATIENCE / 1000} s`);
        }
        await sleep(50);
    }
}

/** Wants a call to be refused, and gives the Status. */
export async function refused(code, reason, call) {
    try {
        await call();
    } catch (error) {
        const status = typeof error.body === 'string' ? JSON.parse(error.body) : error.body;
        if (error.code !== code || status?.reason !== reason) {
            throw error;
        }
        return status;
    }
    throw new Error(`not refused with ${code} ${reason}`);
}

/** Waits until a get is answered 404. */
export async function gone(what, get) {
    await until(`${what} is gone`, async () => {
        try {
            await get();
            return false;
        } catch (error) {
            if (error.code === 404) {
                return true;
            }
            throw error;
        }
    });
}
