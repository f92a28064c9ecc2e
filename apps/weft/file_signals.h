// Signals that the system sends for what happens to files.
#pragma once

namespace weft {

// For the whole process. SIGXFSZ is ignored: the write that goes beyond the limit of a file's size fails with a message. SIGBUS,
// which follows when a mapped file becomes shorter while it is read, ends the process with a message that names the file.
void report_file_signals();

}  // namespace weft
