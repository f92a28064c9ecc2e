#pragma once

namespace weft {

// Lets the calling thread, which communicates and seldom computes, run as soon as it wakes up although every core is
// busy: otherwise it waits for the end of a time slice, some milliseconds, and with it its peers. Where the system does
// not allow it, nothing changes.
void put_communication_first();

}  // namespace weft
