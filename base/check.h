// Assertions. Both macros print the expression and abort the process when it is false.
//
// PBOX_CHECK is always on. It belongs in set-up and control code, where a broken invariant would
// corrupt state.
// PBOX_DCHECK belongs on the data path. It is on in every build made for tests (presets dev, asan
// and tsan, which leave NDEBUG undefined) and off in release builds (presets release and package,
// which define NDEBUG). tests/unit/base/test_check.cc and tests/fuzz verify that. When it is off,
// the compiler still checks the expression, but the program never evaluates it.
//
// A check states what the program itself guarantees. Never check what a packet, a file or a user
// could cause: count and drop the packet, or return an Error.
#pragma once

namespace pbox {

// Prints the failed expression and its place to stderr, then aborts. Any thread.
[[noreturn]] void check_failed(const char* expression, const char* file, int line);

#ifdef NDEBUG
inline constexpr bool kDatapathChecksOn = false;
#else
inline constexpr bool kDatapathChecksOn = true;
#endif

}  // namespace pbox

#define PBOX_CHECK(expression) \
  (static_cast<bool>(expression) ? void(0) : ::pbox::check_failed(#expression, __FILE__, __LINE__))

#ifdef NDEBUG
#define PBOX_DCHECK(expression) static_cast<void>(sizeof(static_cast<bool>(expression)))
#else
#define PBOX_DCHECK(expression) PBOX_CHECK(expression)
#endif
