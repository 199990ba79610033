# Run while the package is installed: a manifest beside the native libraries, and one beside that for torch.
set(native "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/bringup/_native")
execute_process(COMMAND ${manifest_command} "${native}" "${sources}" COMMAND_ERROR_IS_FATAL ANY)
if(torch_folder)
  execute_process(COMMAND ${manifest_command} "${native}/${torch_folder}" "${sources}" "${torch_version}"
    COMMAND_ERROR_IS_FATAL ANY)
endif()
