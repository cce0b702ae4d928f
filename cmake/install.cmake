# cmake --install build/release --prefix P: installs headers, library, programs, and the files for
# find_package(weft) and pkg-config. The installed tree can be moved: nothing in it contains P.
include(CMakePackageConfigHelpers)

set(weft_lib lib)
set_target_properties(weft weft_tokenizer PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  INSTALL_RPATH "$ORIGIN")

install(TARGETS weft weft_tokenizer EXPORT weft_targets
  LIBRARY DESTINATION ${weft_lib} INCLUDES DESTINATION include)
foreach(program train_gpt train_moe generate chat evaluate convert info plan tokenize train_tokenizer
    weft_launch)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../${weft_lib}")
    install(TARGETS ${program} RUNTIME DESTINATION bin OPTIONAL)
    list(APPEND weft_programs ${program})
  endif()
endforeach()

# Completion files and manual pages: each program writes its own, from the tables of its flags.
install(CODE "
  set(share \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share\")
  function(write_text folder name)
    file(MAKE_DIRECTORY \"\${share}/\${folder}\")
    execute_process(COMMAND \${ARGN} OUTPUT_FILE \"\${share}/\${folder}/\${name}\"
      COMMAND_ERROR_IS_FATAL ANY)
  endfunction()
  foreach(program ${weft_programs})
    set(binary \"${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/\${program}\")
    if(EXISTS \"\${binary}\")
      write_text(bash-completion/completions \${program} \${binary} --completion bash)
      write_text(zsh/site-functions _\${program} \${binary} --completion zsh)
      write_text(fish/vendor_completions.d \${program}.fish \${binary} --completion fish)
      write_text(man/man1 \${program}.1 \${binary} --man)
    endif()
  endforeach()")

# Public headers keep their folders. Headers shared by CPU kernels are private.
foreach(folder autograd core data distributed io nn optim tokenizer train)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION include/weft
    FILES_MATCHING PATTERN "*.h" PATTERN core/cpu EXCLUDE)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/train.h ${PROJECT_SOURCE_DIR}/weft.h ${PROJECT_SOURCE_DIR}/xtensor.h
  DESTINATION include/weft)

set(weft_package ${weft_lib}/cmake/weft)
install(EXPORT weft_targets NAMESPACE weft:: DESTINATION ${weft_package} FILE weftTargets.cmake)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/weftConfig.cmake.in
  ${PROJECT_BINARY_DIR}/weftConfig.cmake INSTALL_DESTINATION ${weft_package})
# Before 1.0 a new minor version may break compatibility with the previous one.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/weftConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/weftConfig.cmake ${PROJECT_BINARY_DIR}/weftConfigVersion.cmake
  DESTINATION ${weft_package})

configure_file(${PROJECT_SOURCE_DIR}/cmake/weft.pc.in ${PROJECT_BINARY_DIR}/weft.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/weft.pc DESTINATION ${weft_lib}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/weft)
