// A job whose weights the box holds and steps: what comes back is a local oracle's, bit for bit.
#pragma once

#include <string>

namespace pbox::test {

// Two ranks, processes of their own, over a change of the learning rate. What went wrong; empty:
// every round's weights were right.
std::string run_momentum(const std::string& box, bool as_nobody = false,
                         const std::string& port = "socket");

}  // namespace pbox::test
