# A wheel holds the Python files, libpbox.so, libpbox_tls.so.1 and every library that these need,
# except those that every Linux with glibc has. The libraries find one another in the package's
# folder.
foreach(library IN ITEMS pbox pbox_tls)
  set_target_properties(${library} PROPERTIES INSTALL_RPATH "$ORIGIN")
  # A wheel has no symbolic links.
  set_property(TARGET ${library} PROPERTY VERSION)
  set_property(TARGET ${library} PROPERTY SOVERSION)
endforeach()
install(TARGETS pbox pbox_tls LIBRARY DESTINATION pbox COMPONENT wheel)
install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES LIBRARIES "$<TARGET_FILE:pbox>" "$<TARGET_FILE:pbox_tls>"
    RESOLVED_DEPENDENCIES_VAR libraries
    PRE_EXCLUDE_REGEXES "^lib(c|m|stdc\\+\\+|gcc_s|dl|rt|pthread)\\.so" "^ld-linux")
  foreach(library IN LISTS libraries)
    get_filename_component(name "${library}" NAME)
    file(COPY_FILE "${library}" "${CMAKE_INSTALL_PREFIX}/pbox/${name}")
  endforeach()
]] COMPONENT wheel)
