#pragma once

namespace weft {

// Lets the calling thread, which communicates and rarely computes, run as soon as it wakes up even if every core is
// busy. Otherwise it waits for the end of a time slice, a few milliseconds, and its peers wait too. Has no effect where
// the system does not allow it, or where the process was started with a real-time policy, which is more (chrt).
void put_communication_first();

}  // namespace weft
