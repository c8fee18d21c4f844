// Assertions. PBOX_CHECK is always on and belongs to set-up and control; PBOX_DCHECK belongs to the
// data path and vanishes in release builds. Both end the process: they state what the program
// itself guarantees, never what input might violate.
#pragma once

namespace pbox {

[[noreturn]] void check_failed(const char* expression, const char* file, int line);

}  // namespace pbox

#define PBOX_CHECK(expression) \
  (static_cast<bool>(expression) ? void(0) : ::pbox::check_failed(#expression, __FILE__, __LINE__))

#ifdef NDEBUG
#define PBOX_DCHECK(expression) void(0)
#else
#define PBOX_DCHECK(expression) PBOX_CHECK(expression)
#endif
