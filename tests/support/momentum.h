// A job in mode optimize whose weights must equal a local oracle's, bit for bit.
#pragma once

#include <string>
#include <vector>

namespace pbox::test {

// Trains with two ranks at each of these boxes, in processes of their own. The learning rate
// changes during the training. If there are several boxes, each serves one rack. Returns the error;
// empty if all rounds' weights were right.
std::string run_momentum(const std::vector<std::string>& racks, bool as_nobody = false,
                         const std::string& port = "socket");
inline std::string run_momentum(const std::string& box, bool as_nobody = false,
                                const std::string& port = "socket") {
  return run_momentum(std::vector<std::string>{box}, as_nobody, port);
}

}  // namespace pbox::test
