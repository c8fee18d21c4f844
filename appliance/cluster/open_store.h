// From [cluster] of the configuration to the store it names. Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>

#include "appliance/cluster/store.h"
#include "appliance/storage/disk.h"
#include "config/config.h"

namespace pbox::cluster {

// Reads the files that the configuration names; does not wait for etcd. `context` and `disk`
// outlive the store.
Result<std::unique_ptr<Store>> open_store(boost::asio::io_context& context,
                                          const config::Cluster& config, appliance::Disk& disk);

}  // namespace pbox::cluster
