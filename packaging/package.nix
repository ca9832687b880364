# mulligan as a package of nixpkgs: the client, the daemon, its units, manual pages and completions.
{ buildGoModule, libvirt, git, patchelf, stdenv, version ? "0.1.0", commit ? "unknown" }:

buildGoModule {
  pname = "mulligan";
  inherit version;
  src = ../.;
  # The hash of the modules' sources. Whoever changes go.mod, or imports another package, renews it: TestModulesHash says what it is.
  vendorHash = "sha256-YVa3OJ2r5wAHvQw23M1hmcDpvlV7iXCBhBJkijqXmxU=";
  nativeBuildInputs = [ git patchelf ];

  buildPhase = ''
    runHook preBuild
    make build man SHELL=${stdenv.shell} VERSION=${version} COMMIT=${commit}
    runHook postBuild
  '';
  doCheck = false; # the tests boot a systemd, libvirt and databases: no sandbox has them
  installPhase = ''
    runHook preInstall
    make install SHELL=${stdenv.shell} PREFIX=$out VERSION=${version} COMMIT=${commit}
    runHook postInstall
  '';
  # libvirt is opened when an app has a virtual machine.
  postFixup = ''
    patchelf --add-rpath ${libvirt}/lib $out/bin/mulligand
  '';
  meta = {
    description = "Undo for whole apps: files, disks and databases together";
    mainProgram = "mulligan";
    platforms = [ "x86_64-linux" "aarch64-linux" ];
  };
}
