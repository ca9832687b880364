package testkit

// tallyEnv names the file in which long runs count what they did.
const tallyEnv = "MULLIGAN_TEST_TALLY"
