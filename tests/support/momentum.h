// A job in mode optimize whose weights must equal a local oracle's, bit for bit.
#pragma once

#include <string>

namespace pbox::test {

// Runs two ranks in processes of their own, across a change of the learning rate. Returns the
// error; empty if all rounds' weights were right.
std::string run_momentum(const std::string& box, bool as_nobody = false,
                         const std::string& port = "socket");

}  // namespace pbox::test
