# CPack makes a Debian package of each component; see README.md here.
set(packaging "${CMAKE_CURRENT_LIST_DIR}")
set(documents "${PROJECT_BINARY_DIR}/packaging")

# Debian wants the changelog compressed, without a name or time in the compressed file.
find_program(gzip gzip REQUIRED)
file(MAKE_DIRECTORY "${documents}")
execute_process(COMMAND "${gzip}" -9nc "${packaging}/changelog"
  OUTPUT_FILE "${documents}/changelog.gz" COMMAND_ERROR_IS_FATAL ANY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${packaging}/changelog")

# pbox_package(COMPONENT PACKAGE SECTION DEPENDS SUMMARY LINE...) declares a component's package.
macro(pbox_package component package section depends summary)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${depends}")
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${summary}\n${ARGN}")
  install(FILES "${documents}/changelog.gz" DESTINATION share/doc/${package} COMPONENT ${component}
    RENAME changelog.gz)
  install(FILES "${packaging}/copyright" DESTINATION share/doc/${package} COMPONENT ${component})
endmacro()

set(same "(= ${PROJECT_VERSION})")
pbox_package(box pboxd net "pboxctl ${same}, systemd"
  "gradient-aggregation appliance: the daemon"
  "Sums the gradients of data-parallel training jobs while they arrive, and sends the result back. \
It can run the optimizer too.")
pbox_package(pboxctl pboxctl net ""
  "gradient-aggregation appliance: the operator's tool"
  "Shows what boxes do, plans them, says who is late, and finds out why nothing flows.")
pbox_package(worker libpbox libs ""
  "gradient-aggregation appliance: the library of workers"
  "What a training process loads to exchange gradients through a box, with its C header.")
# These are packages of their own, because a training image needs DPDK, rdma-core or OpenSSL only if
# it uses them.
foreach(name IN ITEMS dpdk rdma)
  if(TARGET pbox_${name})
    string(TOUPPER ${name} upper_name)
    pbox_package(worker_${name} libpbox-${name} libs "libpbox ${same}"
      "gradient-aggregation appliance: ${upper_name} for workers"
      "What libpbox loads when PBOX_PORT names a ${upper_name} device.")
  endif()
endforeach()
pbox_package(worker_tls libpbox-tls libs "libpbox ${same}"
  "gradient-aggregation appliance: keys for workers"
  "What libpbox loads when PBOX_KEYS names a folder of keys: TLS of control connections.")
set(CPACK_DEBIAN_WORKER_PACKAGE_SUGGESTS "libpbox-tls, libpbox-dpdk, libpbox-rdma")
# A box with keys is a worker of its upstream box, and of boxes that keep replicas.
set(CPACK_DEBIAN_BOX_PACKAGE_RECOMMENDS "libpbox-tls ${same}")
pbox_package(python python3-pbox python "libpbox ${same}, python3"
  "gradient-aggregation appliance: the Python package"
  "Exchanges numpy arrays and torch tensors through a box, and plugs into PyTorch.")
pbox_package(dashboards pbox-dashboards net ""
  "gradient-aggregation appliance: dashboards and alerts"
  "For Grafana and Prometheus: a box, a job, all boxes, stragglers.")

# Packing must not start a build of several minutes; a missing file is an error instead.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME pbox)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "PBox maintainers <pbox@pbox.example>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DASHBOARDS_PACKAGE_SHLIBDEPS OFF)
foreach(component IN ITEMS PYTHON DASHBOARDS)
  set(CPACK_DEBIAN_${component}_PACKAGE_ARCHITECTURE all)
endforeach()
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_STRIP_FILES ON)
# Folders get the modes that Debian's own folders have.
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_BOX_PACKAGE_CONTROL_EXTRA
  "${packaging}/pboxd/postinst;${packaging}/pboxd/prerm;${packaging}/pboxd/postrm")
foreach(component IN ITEMS WORKER WORKER_DPDK WORKER_RDMA WORKER_TLS)
  set(CPACK_DEBIAN_${component}_PACKAGE_CONTROL_EXTRA "${packaging}/libpbox/triggers")
endforeach()
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
