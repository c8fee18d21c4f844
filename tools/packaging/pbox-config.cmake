# find_package(pbox) defines the imported library pbox::pbox.
get_filename_component(_pbox_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET pbox::pbox)
  add_library(pbox::pbox SHARED IMPORTED)
  set_target_properties(pbox::pbox PROPERTIES
    IMPORTED_LOCATION "${_pbox_prefix}/lib/libpbox.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_pbox_prefix}/include")
endif()
unset(_pbox_prefix)
