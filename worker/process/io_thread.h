// Prepares the threads of libpbox, which run in a process that belongs to the application.
#pragma once

#include <signal.h>

namespace pbox::worker {

// Returns the signals that other threads and processes send. They are for the application's
// threads, so threads of libpbox and of its ports block them. The others are raised by an
// instruction of the thread itself, for example SIGSEGV. If they were blocked, the kernel would
// kill the process without calling the application's handler.
sigset_t foreign_signals();

// Prepares the calling thread to be one of libpbox's. Names it, blocks foreign_signals(), and lets
// it run wherever the main thread may run. A thread inherits its CPUs from the one that creates it,
// and the thread that joins may be pinned to a CPU that it wants for itself.
void become_library_thread(const char* name);

}  // namespace pbox::worker
