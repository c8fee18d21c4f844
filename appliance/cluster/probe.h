// Is a box there, and does it answer? Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <string>

namespace pbox::cluster {

// Connects to the control port, "HOST:PORT" with a literal address, and asks for data addresses,
// which any box answers at once. `done` gets why nothing came of it, or nothing if something did;
// it is called later, from the context.
void probe(boost::asio::io_context& context, const std::string& control,
           std::chrono::milliseconds timeout, std::function<void(const std::string& failure)> done);

}  // namespace pbox::cluster
